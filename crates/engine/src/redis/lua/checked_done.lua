if ARGV[9] ~= '0' then c('HSET', m, ':v', ARGV[9], ':w', ARGV[10]) end
if KEYS[3] then c('SET', KEYS[3], e .. ':' .. n, 'PX', ARGV[8]) end
