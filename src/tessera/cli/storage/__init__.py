"""Commands about what is kept on local disks: disks, models, images."""
