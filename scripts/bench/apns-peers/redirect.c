/* a2 sends to Apple's names at port 443 and nowhere else. Loaded before the C library (LD_PRELOAD), this finds every name
 * at 127.0.0.1 and connects port 443 to the one that APNS_PORT says. The sender itself stays as it is published. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **) = dlsym(RTLD_NEXT, "getaddrinfo");
    (void)node;
    return real("127.0.0.1", service, hints, found);
}

int connect(int socket, const struct sockaddr *address, socklen_t length) {
    int (*real)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "connect");
    const char *port = getenv("APNS_PORT");
    if (port && address->sa_family == AF_INET && length >= sizeof(struct sockaddr_in)) {
        struct sockaddr_in other = *(const struct sockaddr_in *)address;
        if (other.sin_port == htons(443)) {
            other.sin_port = htons((unsigned short)atoi(port));
            return real(socket, (struct sockaddr *)&other, sizeof other);
        }
    }
    return real(socket, address, length);
}
