"""Chapter 9: a census of the norms in the ``transformers`` library, by building every text model small and running it."""
