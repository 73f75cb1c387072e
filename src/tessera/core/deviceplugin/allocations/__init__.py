"""Which container is allocated which device, and may it start with it? By kubelet, agent and assignments."""
