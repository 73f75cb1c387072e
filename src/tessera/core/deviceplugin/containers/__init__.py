"""What does a container get that is allocated a device or a share?"""
