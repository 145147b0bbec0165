"""What the page takes of browser and server, and the pictures of the docs."""
