"""What every database that speaks SQL does alike: reading, sessions, branches, words, order.

The statements here are written once, in what SQLite and PostgreSQL have in common, with `?` and
`:name` for values. What the two do not share (how a step is inserted and forgotten, how a database
is opened and checked) stands beside each of them, in `stores/sqlite` and `stores/postgres`.
"""
