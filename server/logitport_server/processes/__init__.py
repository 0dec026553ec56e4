"""`logitport serve`: one server in this process, or several in processes of their own (`--processes`)."""
