"""Figures of a frontend, of its siblings and of the engines, as Prometheus reads them."""
