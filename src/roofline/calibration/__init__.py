"""Fits the few constants of the kernel models to measured kernels."""
