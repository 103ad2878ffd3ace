"""The cycle-approximate model of the KV ASIC behind the same memory map as the firmware."""
