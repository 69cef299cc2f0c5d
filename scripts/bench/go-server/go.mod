module dunlin/bench/go-server

go 1.19
