"""What does a pod ask for? Its need, the units it is counted in, and other systems' names for the same."""
