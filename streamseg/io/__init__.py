"""Files, pictures, videos, cameras and addresses: read and written."""
