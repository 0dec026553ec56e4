module logitport

go 1.19
