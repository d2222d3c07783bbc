"""The compiled CUDA extension: kernels, their layout, their references, and how they are built."""
