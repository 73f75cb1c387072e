"""Which devices does the kubelet have, and which are the scheduler's to allocate?"""
