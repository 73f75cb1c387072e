"""What is a GPU, and how may it be shared? Models, legal MIG layouts, sharing modes, what the driver shows."""
