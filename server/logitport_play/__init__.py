"""`logitport play`: a page in the browser that shows what a chain does, step by step."""
