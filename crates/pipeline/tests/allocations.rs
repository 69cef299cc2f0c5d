//! Checks that a request allocates nothing.

use dunlin_pipeline::{Connection, ConnectionLimits, Kind, Progress, Window, WindowConfig};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

#[test]
fn a_request_and_its_answer_allocate_nothing() {
    let mut connection = Connection::new(&ConnectionLimits::default());
    let mut window = Window::new(WindowConfig { min: 100, max: 100 });
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nHello, World!";
    let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n";
    let answers = [&answer.repeat(99)[..], chunked].concat();
    let mut now_ns = 1;
    let mut turn = |connection: &mut Connection| {
        let count = connection.room(window.depth());
        connection.handle_sent(connection.sent(), count, Kind::GET, now_ns);
        now_ns += 1_000_000;
        assert_eq!(connection.handle_input(&answers, &mut ()), Ok(Progress::Open));
        window.handle_answers(count, now_ns - 1_000_000, now_ns, connection.in_flight());
        assert_eq!((count, connection.in_flight()), (100, 0));
    };
    turn(&mut connection);
    let region = Region::new(ALLOCATOR);
    for _ in 0..1000 {
        turn(&mut connection);
    }
    let spent = region.change();
    assert_eq!((spent.allocations, spent.reallocations), (0, 0), "for 100,000 requests");
    assert_eq!(connection.answered(), 100_100);
}
