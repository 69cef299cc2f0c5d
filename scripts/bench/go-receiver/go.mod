module dunlin/bench/go-receiver

go 1.19
