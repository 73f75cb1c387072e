"""Commands for local storage: disks, models, images."""
