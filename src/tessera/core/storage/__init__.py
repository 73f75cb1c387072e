"""What a node keeps on its disk before a pod needs it: revisions of models, what to fetch, what to evict."""
