"""Formats of NVIDIA's programs: mig-parted, the device plugin's sharing file, the GPU operator, GFD's labels, CDI."""
