"""What the programs of gpushare ask and read."""
