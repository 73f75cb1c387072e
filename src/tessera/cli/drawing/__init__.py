"""The drawing of a plan: every GPU as a strip of slices with its pods, as one self-contained SVG."""
