if ARGV[11] ~= '0' then c('HSET', m, ':v', ARGV[11], ':w', ARGV[12]) end
if KEYS[3] then c('SET', KEYS[3], e .. ':' .. n, 'PX', ARGV[10]) end
