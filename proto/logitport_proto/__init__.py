"""Python code of the protobuf package `logitport.v1`, generated from proto/logitport/v1 (`make proto`)."""
