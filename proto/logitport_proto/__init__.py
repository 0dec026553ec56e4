"""The contract, package `logitport.v1`: .proto files and the code generated from them (`make proto`)."""
