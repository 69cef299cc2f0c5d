module dunlin/bench/apns-peer-apns2

go 1.19

require (
	github.com/sideshow/apns2 v0.25.0
	golang.org/x/net v0.17.0
)

require (
	github.com/golang-jwt/jwt/v4 v4.4.1 // indirect
	golang.org/x/text v0.13.0 // indirect
)
