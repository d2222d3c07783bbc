"""The compiled CUDA extension: kernels, their layout, and how they are built."""
