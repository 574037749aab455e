"""The page that shows a trace: one HTML file that asks nothing of a network."""

from canopy_client.view.images import pictures
from canopy_client.view.page import page

__all__ = ["page", "pictures"]
