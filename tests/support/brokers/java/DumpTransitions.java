import java.lang.reflect.Method;

/** Prints every transition that a transactional producer's states allow: source, target. */
public class DumpTransitions {
    public static void main(String[] arguments) throws Exception {
        Class<?> state = Class.forName(
            "org.apache.kafka.clients.producer.internals.TransactionManager$State");
        Method valid = state.getDeclaredMethod("isTransitionValid", state, state);
        valid.setAccessible(true);
        for (Object source : state.getEnumConstants())
            for (Object target : state.getEnumConstants())
                if ((boolean) valid.invoke(source, source, target))
                    System.out.println(source + " " + target);
    }
}
