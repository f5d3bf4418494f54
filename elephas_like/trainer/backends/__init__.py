"""Keras' backends, one module each.

protocol        what a backend is to the rest of the package
chosen          the one of this process
tensorflow      tensors, threads, variables; tensorflow_loop: steps; tensorflow_fused: optimizers in fewer ops;
                tensorflow_rows: what prepares rows
jax             the same for JAX; jax_loop: steps
torch           the same for PyTorch; torch_loop: steps; torch_buffers,
                torch_generator: what of its modules and its random numbers is state
text            columns of text
foreign_code    what only TensorFlow can compute with
"""
