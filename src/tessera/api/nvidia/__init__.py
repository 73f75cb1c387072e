"""Formats of NVIDIA's programs: mig-parted, the device plugin's sharing file, GPU Feature Discovery's labels, CDI."""
