"""Plans at work: workspaces for steps, the tasks that ship with the library, and what runs them."""
