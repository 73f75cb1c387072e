"""What does a node keep on its local disks, and how are the disks made ready for it?"""
