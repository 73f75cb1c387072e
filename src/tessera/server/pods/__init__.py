"""The pods as a server sees them: as the watch has them, with what is promised, exchanged and kept for them."""
