"""Storage floor (1): protocols, the HDF5 stores, and their twins in memory."""
