"""What does a GPU node do? How its GPUs are shared, repartitioned, limited, monitored and reported."""
