"""What does the kubelet get? Which devices are in its list, which a container is allocated, and how it gets them.

`containers` lies on `allocations`, and that on `offers`; `containerresponse`, an answer for one container, lies below
all, and `gpucount`, a number for gpushare's programs, above.
"""
