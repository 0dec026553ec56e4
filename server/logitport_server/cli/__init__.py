"""The `logitport` command: one file a subcommand."""
