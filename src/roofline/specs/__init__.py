"""What hardware and models are, as data: schemas, and the library that finds the files."""
