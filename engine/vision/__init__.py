"""Pictures: an mmproj file and a picture go in, rows of embeddings for a text model come out."""
