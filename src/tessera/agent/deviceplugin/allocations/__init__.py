"""May a container get a device, and start? By the record of what is allocated to which container."""
