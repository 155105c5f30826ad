"""marius_py: embeddings of graphs larger than GPU memory or RAM, on one machine."""

__version__ = "0.1.0"
