"""`python -m tessera`: the command line."""

from tessera.cli import main

if __name__ == "__main__":
    main(prog_name="tessera")
