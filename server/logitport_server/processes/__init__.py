"""`logitport serve`: one server in this process, or in a supervised process of its own."""
