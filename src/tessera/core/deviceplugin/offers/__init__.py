"""Which devices does the kubelet have in its list, and which of them should a container get?"""
