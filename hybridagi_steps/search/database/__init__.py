"""Search where the data is: candidates from the database, exact scores of them in the process."""
