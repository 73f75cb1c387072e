"""What does a pod request? Its need, its units, and other systems' names for the same."""
