"""One confined directory in which a plan's steps work: files, snapshots, copies, commands.

Open workspace.py first: all others serve it. confined.py keeps paths inside, snapshot.py keeps
states and redoes what a crash cut short, changes.py merges, tools.py is what a model sees.
"""
